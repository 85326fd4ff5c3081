# %% [markdown]
# # 16 · Matching PyTorch
#
# *Lab notebook, 22 November 2026*

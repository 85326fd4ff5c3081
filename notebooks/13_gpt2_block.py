# %% [markdown]
# # 13 · The GPT-2 block
#
# *Lab notebook, 21 November 2026*

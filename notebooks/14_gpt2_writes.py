# %% [markdown]
# # 14 · GPT-2 writes

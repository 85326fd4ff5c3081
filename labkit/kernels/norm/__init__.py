"""Layer normalisation in float32 and float16."""

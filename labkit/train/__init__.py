"""Training a GPT-2 or a Llama from a text: `labkit train`."""

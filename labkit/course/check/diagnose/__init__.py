"""Why an answer is wrong: what explains it, from what can be seen before it runs to what other inputs show."""

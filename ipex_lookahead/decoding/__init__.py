"""The loop: propose, forward, verify, keep, observe; and the Hugging Face arguments that lead to it."""

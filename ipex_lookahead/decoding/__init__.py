"""The loop: propose, forward, verify, keep, observe."""

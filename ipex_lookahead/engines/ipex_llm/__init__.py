"""An installed ipex-llm's model under our loop."""

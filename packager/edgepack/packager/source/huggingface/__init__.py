"""Model folders of Hugging Face as source models."""

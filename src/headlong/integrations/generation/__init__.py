"""Behind ``generate()`` of Hugging Face models: a look at the model, its fast head, picking tokens, beams, drafts."""

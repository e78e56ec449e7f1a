"""Behind ``generate()`` of Hugging Face models: the loop, a look at the model, its fast head, picking tokens, beams, drafts."""

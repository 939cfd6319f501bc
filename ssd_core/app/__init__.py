"""What the Gradio app is made of, without Gradio: the race, the line in front of the model, recordings, settings."""

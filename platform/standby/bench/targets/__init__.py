"""Who is asked: OpenAI's API anywhere, standby's endpoints by name, SageMaker's endpoints."""

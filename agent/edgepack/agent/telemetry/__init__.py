"""What inferences took: from the processes that serve a model to the agent, and on to the fleet."""

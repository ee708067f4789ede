"""The controller: takes down what devices say, answers them, moves rollouts on."""

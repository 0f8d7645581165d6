"""Files written whole or not at all: models, checkpoints, runs."""

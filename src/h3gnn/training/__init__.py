"""Training: objective, teacher, schedules, the one loop."""

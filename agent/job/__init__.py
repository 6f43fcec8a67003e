"""What is to run: the job, services beside it, and recipes that know a job by name."""

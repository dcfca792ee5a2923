flock --close job.lock ./work

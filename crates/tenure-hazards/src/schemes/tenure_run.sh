tenure run job -- ./work

"""What a job finds around it: container, image, devices, folders, process manager; and which software it is."""

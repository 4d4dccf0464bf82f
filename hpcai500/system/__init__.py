"""What a job finds around it: software, container, devices, folders, process manager."""

"""What administrators see of hosts: hypervisors, services, aggregates, zones, and the overview of the deployment."""

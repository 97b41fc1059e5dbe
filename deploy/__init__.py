"""What a region stands on, and regions on this machine: private servers, and processes of every role."""

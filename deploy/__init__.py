"""What a region stands on, and regions on this machine: private servers, and processes of every role.

Clusters of databases and brokers are here, too. Nothing of it is installed with the product.
"""

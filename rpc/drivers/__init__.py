"""The drivers of oslo.messaging that are ours: for RabbitMQ, and for a bus inside the process."""

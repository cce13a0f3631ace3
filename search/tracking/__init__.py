"""What is remembered: the only room with MLflow. Left to others: deciding what is worth it."""

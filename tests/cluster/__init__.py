"""The image and its workers as containers, with pytest-celery."""

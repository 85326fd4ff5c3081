# README's two commands in a container; with a GPU, the host needs the NVIDIA Container Toolkit.
#   docker build -t labkit .
#   docker run --rm labkit
#   docker run --rm --gpus all labkit
#   docker run --rm labkit bash -c "pip install -e '.[test]' && pytest"
FROM python:3.12.11-slim-bookworm

RUN useradd --create-home --uid 1000 learner && install -d -o learner -g learner /home/learner/labkit
USER learner
WORKDIR /home/learner/labkit
ENV VIRTUAL_ENV=/home/learner/venv \
    PATH=/home/learner/venv/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN python -m venv /home/learner/venv

# The files from which pip reads the dependencies come first, so that a change of any other does not install them again.
# cu12 runs with a driver for CUDA 12 or 13, and without a driver does no harm.
COPY --chown=learner:learner pyproject.toml README.md LICENSE ./
COPY --chown=learner:learner labkit/__init__.py labkit/
COPY --chown=learner:learner labkit/_common/__init__.py labkit/_common/version.py labkit/_common/
RUN pip install -e '.[cu12]'

COPY --chown=learner:learner . .
CMD ["bash", "-c", "pip install -e . && labkit run"]

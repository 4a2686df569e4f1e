#!/usr/bin/env bash
# MMEngine's backend of MLflow doesn't start with its defaults and a new MLflow.
#
# Version: onedl-mmengine 0.10.12, mlflow-skinny 3.17.2 and torch 2.13.0, on a
# CPU.
#
# Without `tracking_uri`, `MLflowVisBackend` makes the folder `mlruns` below its
# `save_dir` and gives it to MLflow as the store, which MLflow kept in files for
# years. This version of MLflow raises an error for such a store, and names an
# environment variable. So a config that trained before stops before its first
# iteration after an update of MLflow. With `tracking_uri='sqlite:///...'`,
# and sqlalchemy, the same config trains.
#
# Output seen:
#
#     default: MlflowException
#     with MLFLOW_ALLOW_FILE_STORE=true: no error
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 onedl-mmengine==0.10.12 opencv-python-headless==4.13.0.92 mlflow-skinny==3.17.2
cat > "$folder/finding.py" <<'END'
import sys
import warnings

warnings.simplefilter('ignore')

from mmengine.visualization import MLflowVisBackend  # noqa: E402

backend = MLflowVisBackend(sys.argv[1])
try:
    backend.add_scalar('loss', 0.5, step=1)
    print('no error')
except Exception as error:
    print(type(error).__name__)
END
cd "$folder"
default=$(venv/bin/python finding.py one | tail -1)
allowed=$(MLFLOW_ALLOW_FILE_STORE=true venv/bin/python finding.py two | tail -1)
echo "default: $default"
echo "with MLFLOW_ALLOW_FILE_STORE=true: $allowed"
[ "$default" = MlflowException ] && [ "$allowed" = 'no error' ]

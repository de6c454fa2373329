# Where the project is hosted. These values are placeholders until it is. "make rename" replaces them here and in all
# other files that git tracks, for example make rename MODULE=example.com/other/name MAINTAINERS=@other/team.

# The module path. The repository is at https://MODULE.
MODULE := github.com/dynamic-controller/engine
# Where vulnerabilities are reported in private.
ADVISORIES := https://github.com/dynamic-controller/engine/security/advisories/new
# The owners in .github/CODEOWNERS.
MAINTAINERS := @dynamic-controller/maintainers
# Where the workflow of a release pushes the image, and the chart as an OCI artifact.
RELEASE_IMAGE := ghcr.io/dynamic-controller/engine/dynamic-controller
RELEASE_CHARTS := ghcr.io/dynamic-controller/engine/charts

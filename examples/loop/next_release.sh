#!/usr/bin/env bash
# From a shifted scene to the next release, without a step on any device.
#
#   next_release.sh MODEL.onnx NAME VERSION KEY OUTPUT
#
# EDGEPACK_FLEET_URL and EDGEPACK_FLEET_DATA name the fleet. CAPTURE, BUILD and ROLLOUT hold further
# options of three commands, for example CAPTURE="--samples 500 --collect 24h".
# Devices take part if their own settings allow uploads: upload = true below [capture].
set -euo pipefail
model=$1 name=$2 version=$3 key=$4 output=$5
mkdir -p "$output"

# 1. Name the features that drifted, and keep the devices' measurements for the build.
edgepack fleet feedback "$name" -o "$output/feedback.json"

# 2. Devices choose samples, encrypt and upload them. Wait until all devices are done.
# shellcheck disable=SC2086  # Options are words.
edgepack fleet capture "$name" --of drift,doubt --wait 14d ${CAPTURE-}

# 3. Decrypt the samples into a folder that a build reads.
edgepack fleet samples pull "$name" -o "$output/captured"

# 4. Build the next release from the samples. The first lines state the response to the drift.
#    To train the model again, label "$output/captured" and train here, before the build.
# shellcheck disable=SC2086
edgepack build "$model" --calibration "$output/captured" --feedback "$output/feedback.json" \
    --key "$key" -o "$output/$name-$version.edgepack" ${BUILD-}

# 5. Roll the release out. The release first runs in the shadow of the serving release, and differs
#    from it on purpose. A device that gets the release last is the control of the gates.
# shellcheck disable=SC2086
started=$(edgepack rollout start "$output/$name-$version.edgepack" --all \
    --shadow --shadow-differs 100% --control 1 --json ${ROLLOUT-})
rollout=$(sed -n 's/.*"rollout": *"\(r[0-9]*\)".*/\1/p' <<<"$started" | head -n 1)
edgepack rollout watch "$rollout"

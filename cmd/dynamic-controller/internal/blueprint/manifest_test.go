package blueprint

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Each revision of the manifest has one spec. A replica overwrites the manifest unless the stored one has a higher
// revision. An older replica would therefore revert a change that does not increase the revision.
func TestManifest_EachChangeHasARevision(t *testing.T) {
	crd, err := Manifest()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(crd.Spec)
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/manifest-revisions"
	revisions, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(revisions)), "\n")
	want := fmt.Sprintf("%s %x", crd.Annotations[ManifestRevisionAnnotation], sha256.Sum256(spec))
	if last := lines[len(lines)-1]; last != want {
		t.Errorf("the last line of %s is %q, want %q: if crd.yaml has changed since the last release, increase the revision "+
			"in its annotation, and add a line to the file", file, last, want)
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, fmt.Sprintf("%d ", i+1)) {
			t.Errorf("line %d of %s is %q, want the revision %d", i+1, file, line, i+1)
		}
	}
}

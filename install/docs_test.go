package install

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const docs = "../docs/install.md"

// blocks returns the indented blocks in the documentation, without lists.
func blocks(t *testing.T) (all []string) {
	t.Helper()
	var block strings.Builder
	for line := range strings.Lines(read(t, docs) + "end\n") {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			block.WriteString(code)
		} else if strings.TrimSpace(line) != "" && block.Len() > 0 {
			all = append(all, block.String())
			block.Reset()
		}
	}
	return all
}

func TestDocs_ManifestsAndValuesAreValid(t *testing.T) {
	values, overlays := 0, 0
	for _, text := range blocks(t) {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &object); err != nil {
			continue // a command
		}
		if object["kind"] != "Kustomization" {
			values++
			if _, err := render(object); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
			continue
		}
		overlays++
		if objects := kustomizeText(t, text, "../../install/kustomize"); len(objects) < 20 {
			t.Errorf("got %d objects of\n%s", len(objects), text)
		}
	}
	if values < 4 || overlays != 1 {
		t.Errorf("found %d blocks of values, and %d overlays", values, overlays)
	}
}

var (
	target   = regexp.MustCompile(`\bmake ([a-z-]+)`)
	filename = regexp.MustCompile(`\b(?:install|examples)/[\w./-]+`)
	set      = regexp.MustCompile(`--set (\S+)`)
	value    = regexp.MustCompile("`([a-z][A-Za-z]+(?:\\.[a-z][A-Za-z]+)+)`")
)

func TestDocs_NamesExistingTargetsFilesAndValues(t *testing.T) {
	text := read(t, docs)
	makefile := read(t, "../Makefile")
	for _, match := range target.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(makefile, "\n"+match[1]+": ") {
			t.Errorf("%s does not exist", match[0])
		}
	}
	for _, file := range filename.FindAllString(text, -1) {
		if _, err := os.Stat(filepath.Join("..", file)); err != nil {
			t.Error(err)
		}
	}
	defaults := values(t, read(t, filepath.Join(chartDir, "values.yaml")))
	var named []string
	for _, match := range value.FindAllStringSubmatch(text, -1) {
		named = append(named, match[1])
	}
	for _, match := range set.FindAllStringSubmatch(text, -1) {
		for assignment := range strings.SplitSeq(match[1], ",") {
			path, _, _ := strings.Cut(assignment, "=")
			named = append(named, path)
		}
	}
	for _, path := range named {
		var at any = defaults
		for key := range strings.SplitSeq(path, ".") {
			inner, _ := at.(map[string]any)
			at = inner[key]
		}
		if at == nil && !slices.Contains([]string{".yaml", ".crt", ".json", ".sig"}, filepath.Ext(path)) {
			t.Errorf("the value %s does not exist", path)
		}
	}
	if len(named) < 10 {
		t.Errorf("found only the values %v", named)
	}
}

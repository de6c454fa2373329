package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests that the trust model names exist.
func TestDocs_TrustModelNamesExistingTests(t *testing.T) {
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, pattern := range []string{"*_test.go", "internal/*/*_test.go", "../../handlers/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tests.Write(content)
		}
	}
	named := regexp.MustCompile("`(Test[A-Za-z0-9_]+)(/[a-z_]+)?`").FindAllStringSubmatch(string(text), -1)
	if len(named) == 0 {
		t.Error("no tests are named")
	}
	for _, name := range named {
		subtest := strings.ReplaceAll(strings.TrimPrefix(name[2], "/"), "_", " ")
		if !strings.Contains(tests.String(), "func "+name[1]+"(") || !strings.Contains(tests.String(), `"`+subtest) {
			t.Errorf("%s does not exist", name[0])
		}
	}
}

package main

import (
	"encoding/xml"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every test that docs/security.md names must exist.
func TestDocs_TrustModelNamesExistingTests(t *testing.T) {
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, pattern := range []string{"*_test.go", "internal/*/*_test.go", "../../handlers/*/*_test.go",
		"../../examples/kind/*_test.go"} {
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
		t.Error("docs/security.md names no tests")
	}
	for _, name := range named {
		subtest := strings.ReplaceAll(strings.TrimPrefix(name[2], "/"), "_", " ")
		if !strings.Contains(tests.String(), "func "+name[1]+"(") || !strings.Contains(tests.String(), `"`+subtest) {
			t.Errorf("%s does not exist", name[0])
		}
	}
}

// The table of messages in docs/reference.md must be one table, and the program must log each message.
func TestDocs_LogMessagesExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Logs\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, table, _ := strings.Cut(section, "\n| message and keys |")
	table, rest, _ := strings.Cut(table, "\n\n")
	if strings.Contains(rest, "\n|") {
		t.Error("the table has a blank line")
	}
	var sources strings.Builder
	for _, root := range []string{".", "../../dynamiccontroller", "../../restmapper", "../../handlers"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(path)
			sources.Write(content)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	messages := 0
	for row := range strings.Lines(table) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, match := range logMessage.FindAllStringSubmatch(cell, -1) {
			messages++
			if !strings.Contains(sources.String(), `"`+match[1]+`"`) {
				t.Errorf("the message %q does not exist", match[1])
			}
		}
	}
	if messages < 30 {
		t.Errorf("found only %d messages", messages)
	}
}

// logMessage matches a message, but not a key.
var logMessage = regexp.MustCompile("`([A-Z][a-z][^`]*)`")

var (
	codeSpan     = regexp.MustCompile("`[^`\n]*`")
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	notInAnchor  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns the anchors that GitHub derives from the headings of a document.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		anchor := notInAnchor.ReplaceAllString(strings.ToLower(match[1]), "")
		found[strings.ReplaceAll(anchor, " ", "-")] = true
	}
	return found
}

// The tables of packages in docs/architecture.md must be complete.
func TestDocs_ArchitectureLinksToEveryPackage(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]bool{}
	err = filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "testdata" || entry.Name() == "bin") {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".go" {
			packages[filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), filepath.FromSlash("../../")))] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path := range packages {
		if !strings.Contains(string(text), "](../"+path+")") {
			t.Errorf("docs/architecture.md has no link to %s", path)
		}
	}
	if len(packages) < 70 {
		t.Errorf("found only %d packages", len(packages))
	}
}

// The table in VERSIONING.md must state for each public package of the library whether it is stable.
func TestDocs_VersioningListsEveryPublicPackage(t *testing.T) {
	text, err := os.ReadFile("../../VERSIONING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n### Packages\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var listed []string
	for _, match := range regexp.MustCompile(`(?m)^\| \[(\S+)\]\((\S+)\) \| (yes|no)\b`).FindAllStringSubmatch(table, -1) {
		if match[1] != match[2] {
			t.Errorf("the link to %s leads to %s", match[1], match[2])
		}
		listed = append(listed, match[1])
	}
	var packages []string
	for _, root := range []string{"dynamiccontroller", "handlers", "restmapper"} {
		err := filepath.WalkDir("../../"+root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && (entry.Name() == "internal" || entry.Name() == "testdata") {
				return fs.SkipDir
			}
			folder := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), filepath.FromSlash("../../")))
			if filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") && !slices.Contains(packages, folder) {
				packages = append(packages, folder)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(packages)
	if !slices.Equal(listed, packages) {
		t.Errorf("VERSIONING.md lists the packages %q, want %q", listed, packages)
	}
}

// Pictures must be well-formed, and have a title and a description for readers who cannot see them.
func TestDocs_PicturesAreWellFormed(t *testing.T) {
	files, err := filepath.Glob("../../docs/images/*.svg")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var picture struct {
			Title string `xml:"title"`
			Desc  string `xml:"desc"`
		}
		if err := xml.Unmarshal(content, &picture); err != nil || picture.Title == "" || picture.Desc == "" {
			t.Errorf("%s: got error %v, title %q and description %q", file, err, picture.Title, picture.Desc)
		}
	}
	if len(files) < 3 {
		t.Errorf("found only %d pictures", len(files))
	}
}

var (
	// listItem matches the beginning of an item. Items, rows and paragraphs are the parts of a recipe.
	listItem   = regexp.MustCompile(`(?m)^ *(- |\d+\. |\||$)`)
	identifier = regexp.MustCompile("`([A-Za-z][A-Za-z0-9_-]*)`")
)

// Each identifier in a part of a recipe must occur in a file to which the part links. Without such links, it must occur
// in a file of the same recipe.
func TestDocs_RecipesNameExistingIdentifiers(t *testing.T) {
	text, err := os.ReadFile("../../docs/extending.md")
	if err != nil {
		t.Fatal(err)
	}
	identifiers := 0
	for _, recipe := range strings.Split(string(text), "\n## ")[1:] {
		title, _, _ := strings.Cut(recipe, "\n")
		ofRecipe := linkedSources(t, recipe)
		for _, part := range listItem.Split(recipe, -1) {
			sources := linkedSources(t, part)
			if sources == "" {
				sources = ofRecipe
			}
			for _, match := range identifier.FindAllStringSubmatch(part, -1) {
				identifiers++
				if !regexp.MustCompile(`\b` + match[1] + `\b`).MatchString(sources) {
					t.Errorf("%s: the linked files do not contain %s", title, match[1])
				}
			}
		}
	}
	if identifiers < 80 {
		t.Errorf("found only %d identifiers", identifiers)
	}
}

// linkedSources returns the content of the files in the repository to which a part of docs/extending.md links, except
// documents.
func linkedSources(t *testing.T, part string) string {
	t.Helper()
	var sources strings.Builder
	for _, match := range markdownLink.FindAllStringSubmatch(part, -1) {
		file := filepath.Join("../../docs", match[1])
		info, err := os.Stat(file)
		if err != nil || info.IsDir() || filepath.Ext(file) == ".md" {
			continue // TestDocs_LinksLeadToExistingFilesAndHeadings checks that it exists
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources.Write(content)
	}
	return sources.String()
}

func TestDocs_LinksLeadToExistingFilesAndHeadings(t *testing.T) {
	documents := map[string]string{}
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		documents[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for path, text := range documents {
		for _, match := range markdownLink.FindAllStringSubmatch(codeSpan.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, ":") {
				continue // on another host
			}
			links++
			file := filepath.Join(filepath.Dir(path), target)
			if target == "" {
				file = path
			}
			info, err := os.Stat(file)
			if err != nil {
				t.Errorf("%s: link %s: %v", path, match[1], err)
				continue
			}
			if info.IsDir() {
				file = filepath.Join(file, "README.md")
			}
			if anchor != "" && !anchors(documents[file])[anchor] {
				t.Errorf("%s: link %s: heading not found", path, match[1])
			}
		}
	}
	if links < 100 {
		t.Errorf("found only %d links", links)
	}
}

package ui

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// get returns the response to a request for the page.
func get(method string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	New().ServeHTTP(w, httptest.NewRequest(method, Path, nil))
	return w
}

func TestNew_SetsStrictHeaders(t *testing.T) {
	w := get(http.MethodGet)
	for name, want := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
		"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
		"Cross-Origin-Opener-Policy": "same-origin",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	directives := strings.Split(w.Header().Get("Content-Security-Policy"), "; ")
	for _, want := range []string{
		"default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
		"require-trusted-types-for 'script'", "trusted-types 'none'",
	} {
		if !slices.Contains(directives, want) {
			t.Errorf("the policy has no %s: %q", want, directives)
		}
	}
	if policy := w.Header().Get("Content-Security-Policy"); strings.Contains(policy, "unsafe") {
		t.Errorf("got the policy %s", policy)
	}
}

// The browser compares the hashes with the content of the elements.
func TestNew_PolicyAllowsTheInlineElements(t *testing.T) {
	w := get(http.MethodGet)
	policy, page := w.Header().Get("Content-Security-Policy"), w.Body.String()
	for _, element := range []string{"style", "script"} {
		found := regexp.MustCompile(`(?s)<`+element+`>(.*?)</`+element+`>`).FindAllStringSubmatch(page, -1)
		if len(found) != 1 || len(found[0][1]) < 1000 {
			t.Fatalf("%s: got %d elements", element, len(found))
		}
		if want := element + "-src " + hash(found[0][1]); !strings.Contains(policy, want) {
			t.Errorf("the policy has no %s: %s", want, policy)
		}
	}
	if strings.Contains(page, "{{") {
		t.Error("a part of the page is missing")
	}
}

func TestNew_ReturnsNothingForOtherMethods(t *testing.T) {
	if w := get(http.MethodHead); w.Code != http.StatusOK {
		t.Errorf("HEAD: got %d", w.Code)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		if w := get(method); w.Code != http.StatusMethodNotAllowed || strings.Contains(w.Body.String(), "<") {
			t.Errorf("%s: got %d, %.80q", method, w.Code, w.Body)
		}
	}
}

func TestDocument_ContainsAllFiles(t *testing.T) {
	entries, err := files.ReadDir("page")
	if err != nil {
		t.Fatal(err)
	}
	page, _ := document()
	for _, entry := range entries {
		if name := entry.Name(); name != "page.html" && !strings.Contains(page, read(name)) {
			t.Errorf("the page does not contain %s", name)
		}
	}
	if len(entries) != len(scripts)+2 {
		t.Errorf("got %d files", len(entries))
	}
}

// The policy forbids these as well. The test finds them earlier.
func TestDocument_LoadsAndInterpretsNothing(t *testing.T) {
	page, _ := document()
	page = strings.ReplaceAll(page, `"http://www.w3.org/2000/svg"`, "") // a name
	for _, forbidden := range []string{
		"http:", "https:", "//cdn", "@import", "url(", "src=", "innerHTML", "outerHTML", "insertAdjacentHTML",
		"document.write", "eval(", "new Function", "DOMParser", "localStorage", "document.cookie", "style=\"", "import(",
	} {
		if at := strings.Index(page, forbidden); at >= 0 {
			t.Errorf("the page contains %q: %.80q", forbidden, page[at:])
		}
	}
	if handler := regexp.MustCompile(`<[^>]* on[a-z]+=`).FindString(page); handler != "" {
		t.Errorf("the page contains an inline event handler: %q", handler)
	}
}

package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"net/http"
	"strings"
)

// Path is the path of the page. The script reads the path "status" in the same directory.
const Path = "/ui"

//go:embed page
var files embed.FS

// scripts contains the files of the script, in the order in which they are executed.
var scripts = []string{"format", "dom", "spark", "model", "table", "graph", "details", "views", "main"}

// read returns the content of an embedded file.
func read(name string) string {
	data, err := files.ReadFile("page/" + name)
	if err != nil {
		panic(err) // the name is a constant
	}
	return string(data)
}

// document returns the page, and its Content-Security-Policy.
func document() (page, policy string) {
	parts := make([]string, 0, len(scripts))
	for _, name := range scripts {
		parts = append(parts, read(name+".js"))
	}
	style, script := read("page.css"), "(() => {\n\"use strict\";\n"+strings.Join(parts, "\n")+"})();\n"
	page = strings.NewReplacer("{{style}}", style, "{{script}}", script).Replace(read("page.html"))
	// The page cannot load or execute anything else, even if text from a user were ever inserted as HTML.
	policy = strings.Join([]string{
		"default-src 'none'", "style-src " + hash(style), "script-src " + hash(script), "connect-src 'self'",
		"img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
		"require-trusted-types-for 'script'", "trusted-types 'none'",
	}, "; ")
	return page, policy
}

// hash returns the CSP source expression for an inline element with the given content.
func hash(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// New returns a handler that serves the page.
func New() http.Handler {
	page, policy := document()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the method must be GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		for name, value := range map[string]string{
			"Content-Type":                 "text/html; charset=utf-8",
			"Content-Security-Policy":      policy,
			"X-Frame-Options":              "DENY",
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"Cache-Control":                "no-store",
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			w.Header().Set(name, value)
		}
		_, _ = w.Write([]byte(page))
	})
}

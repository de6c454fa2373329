//go:build browser

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dynamic-controller/engine/test/browser"
)

// The browser reads the status of a platform on a real control plane, through the ui command.
func TestBrowser_ShowsAPlatform(t *testing.T) {
	s := newStatusScene(t)
	_, url := s.startUI(s.reader)
	const width, height = 1440, 860
	p := browser.Start(t).Open(url, width, height)
	shows := func(selector, want string) {
		t.Helper()
		want = strings.ReplaceAll(want, "GROUP", s.group)
		p.Wait(fmt.Sprintf(`document.querySelector(%q)?.textContent.includes(%q)`, selector, want))
	}
	shows("#role", "Leading, term 1")
	shows("#connection", "Data from")
	shows("#types", "sites GROUP/v1")
	shows("#tab-parked .count", "1")
	shows("#tile-blueprints .note", "1 Rejected, 1 Served")
	for _, step := range []struct{ view, text, details string }{
		{"types", "sites", "Blueprintsites.GROUP"},
		{"parked", s.namespace + "/flowers", "Last error"},
		{"blueprints", "websites.GROUP", "unknown field \"txt\""},
		{"blueprints", "sites.GROUP", "Revisionsites.GROUP-"},
	} {
		p.Click("#tab-" + step.view)
		name := strings.ReplaceAll(step.text, "GROUP", s.group)
		p.Eval(fmt.Sprintf(`[...document.querySelectorAll("#%s tr.row .name")].find((e) => e.textContent === %q).click()`,
			step.view, name), nil)
		shows("#details", step.details)
		if dir := os.Getenv("SCREENSHOTS"); dir != "" {
			p.Screenshot(filepath.Join(dir, "real-"+step.view+".png"))
		}
	}
	p.Click("#tab-replica")
	shows("#replica", "LeadershipThis replica")
	if problems := p.Problems(); len(problems) > 0 {
		t.Errorf("the page has logged errors: %q", problems)
	}
}

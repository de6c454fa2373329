//go:build browser

package ui

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/browser"
)

const (
	width, height = 1440, 860
	manyTypes     = 5000
)

// page is the page in a browser.
type page struct {
	*testing.T
	*browser.Page
	server *server
}

// open opens the page for a status with the number of types, and waits for the first data.
func open(t *testing.T, types int, hash string) *page {
	t.Helper()
	s := newServer(t, types)
	p := &page{t, browser.Start(t).Open(s.url+Path+hash, width, height), s}
	p.Wait(`document.querySelector("#connection").textContent.startsWith("Data from")`)
	return p
}

// picture writes a screenshot for people to $SCREENSHOTS, if it is set.
func (p *page) picture(name string) {
	p.Helper()
	if dir := os.Getenv("SCREENSHOTS"); dir != "" {
		p.Screenshot(filepath.Join(dir, name+".png"))
	}
}

// poll loads new data.
func (p *page) poll() {
	p.Helper()
	before := p.Text(`document.querySelector("#tile-rate").dataset.polls`)
	p.Eval(`document.querySelector("#refresh").click()`, nil)
	p.Wait(fmt.Sprintf(`document.querySelector("#tile-rate").dataset.polls !== %q`, before))
}

// names returns the first cells of the visible rows of a column, from the top of the table.
func (p *page) column(view string, index, count int) string {
	p.Helper()
	return p.Text(fmt.Sprintf(`[...document.querySelectorAll("#%s tbody tr.row")].filter((tr) => !tr.hidden).slice(0, %d)
		.map((tr) => tr.children[%d].textContent).join("|")`, view, count, index))
}

// fill replaces the text of an input, as a user does.
func (p *page) fill(selector, text string) {
	p.Helper()
	p.Eval(fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.focus(); e.select(); })()`, selector), nil)
	if text == "" {
		p.Eval(fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.value = ""; e.dispatchEvent(new Event("input")); })()`,
			selector), nil)
		return
	}
	p.Type(text)
}

// noProblems fails the test if the page has logged errors, for example because its policy was violated.
func (p *page) noProblems() {
	p.Helper()
	if problems := p.Problems(); len(problems) > 0 {
		p.Errorf("the page has logged errors: %q", problems)
	}
}

func TestBrowser_ShowsTheStatus(t *testing.T) {
	p := open(t, 400, "")
	p.poll()
	for selector, want := range map[string]string{
		"#role": "Leading, term 3", "#identity": "dynamic-controller-6c9f_8d1e", "#tile-types .value": "400",
		"#tab-parked .count": "8", "#tile-types .note": "2 Failing", "#types .shown": "400",
		"#connection": "1 errors of the mapper",
	} {
		if got := p.Text(fmt.Sprintf("document.querySelector(%q).textContent", selector)); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", selector, got, want)
		}
	}
	if got := p.column("types", 0, 6); got != "Failing|Forbidden|NotFound|Stopped|Syncing|Synced" {
		t.Logf("problems are sorted first: %s", got)
	}
	for _, view := range []string{"types", "parked", "blueprints", "graph", "replica"} {
		p.Click("#tab-" + view)
		p.picture(view + "-light")
	}
	p.SetDark(true)
	for _, view := range []string{"types", "parked", "blueprints", "graph", "replica"} {
		p.Click("#tab-" + view)
		p.picture(view + "-dark")
	}
	p.noProblems()
}

var _ = http.StatusOK

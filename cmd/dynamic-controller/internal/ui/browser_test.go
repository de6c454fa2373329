//go:build browser

package ui

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dynamic-controller/engine/test/browser"
)

// page is the page, opened in a browser.
type page struct {
	*testing.T
	*browser.Page
	server *server
}

// open opens the page for a status with the given number of types, and waits for the first data.
func open(t *testing.T, types int, view string) *page {
	t.Helper()
	const width, height = 1440, 860
	s := newServer(t, types)
	p := &page{t, browser.Start(t).Open(s.url+Path+view, width, height), s}
	p.Wait(`document.querySelector("#connection").textContent.startsWith("Data from")`)
	return p
}

// picture writes a screenshot to the directory $SCREENSHOTS, if it is set.
func (p *page) picture(name string) {
	p.Helper()
	if dir := os.Getenv("SCREENSHOTS"); dir != "" {
		p.Screenshot(filepath.Join(dir, name+".png"))
	}
}

// poll loads new data a number of times.
func (p *page) poll(times int) {
	p.Helper()
	const polls = `document.querySelector("#tile-rate").dataset.polls`
	for range times {
		before := p.Text(polls)
		p.Eval(`document.querySelector("#refresh").click()`, nil)
		p.Wait(fmt.Sprintf(`%s !== %q`, polls, before))
	}
}

// text returns the text of an element.
func (p *page) text(selector string) string {
	p.Helper()
	return p.Text(fmt.Sprintf("document.querySelector(%q).textContent", selector))
}

// expect fails the test unless the text of each element contains the wanted text. The keys are selectors.
func (p *page) expect(texts map[string]string) {
	p.Helper()
	for selector, want := range texts {
		if got := p.text(selector); !strings.Contains(got, want) {
			p.Errorf("%s: got %q, want %q", selector, got, want)
		}
	}
}

// column returns cells of a column, from the top of a table.
func (p *page) column(view string, index, count int) string {
	p.Helper()
	return p.Text(fmt.Sprintf(`[...document.querySelectorAll("#%s tbody tr.row")].filter((tr) => !tr.hidden).slice(0, %d)
		.map((tr) => tr.children[%d].textContent).join("|")`, view, count, index))
}

// fill replaces the text of an input, as a user does.
func (p *page) fill(selector, text string) {
	p.Helper()
	p.Eval(fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.focus();
		e.value = "";
		e.dispatchEvent(new Event("input"));
	})()`, selector), nil)
	if text != "" {
		p.Type(text)
	}
}

// noProblems fails the test if the page has logged errors, for example because its policy was violated, or if text from
// a user was inserted as HTML or executed.
func (p *page) noProblems() {
	p.Helper()
	if problems := p.Problems(); len(problems) > 0 {
		p.Errorf("the page has logged errors: %q", problems)
	}
	const inserted = `[window.attacked, document.querySelectorAll("img").length, document.scripts.length]`
	if got := p.Text(inserted); got != ",0,1" {
		p.Errorf("text from a user was inserted as HTML: %s", got)
	}
}

var allViews = []string{"types", "parked", "blueprints", "graph", "replica"}

func TestBrowser_ShowsTheStatusInLightAndDark(t *testing.T) {
	p := open(t, 400, "")
	p.poll(70)
	p.expect(map[string]string{
		"#role": "Leading, term 3", "#identity": "dynamic-controller-6c9f_8d1e", "#tile-types .value": "400",
		"#tile-types .note":   "1 Failing, 1 Forbidden, 1 NotFound, 1 Stopped, 1 Syncing, 395 Synced",
		"#tile-failing .note": "36 failing, 8 parked", "#tab-parked .count": "8", "#types .shown": "400",
		"#note": "The mapper has an error", "#replica": "the server is currently unable",
	})
	if got := p.column("types", 0, 6); got != "Failing|Forbidden|NotFound|Stopped|Syncing|Synced" {
		t.Errorf("got the states %s, want problems first", got)
	}
	// After 60 polls, each chart has 60 points.
	for _, chart := range []string{"#tile-rate", "#types tbody tr.row:nth-child(8)"} {
		const want = 60
		path := p.Text(fmt.Sprintf(`document.querySelector("%s svg path:last-child").getAttribute("d")`, chart))
		if got := strings.Count(path, "L") + strings.Count(path, "M"); got != want {
			t.Errorf("%s: got a chart of %d points, want %d: %s", chart, got, want, path)
		}
	}
	backgrounds := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		p.SetDark(scheme == "dark")
		backgrounds[p.Text("getComputedStyle(document.body).backgroundColor")] = true
		for _, view := range allViews {
			p.Click("#tab-" + view)
			if got := p.Text(`[...document.querySelectorAll(".view")].filter((v) => !v.hidden).map((v) => v.id)`); got != view {
				t.Errorf("got the view %s, want %s", got, view)
			}
			p.picture(view + "-" + scheme)
		}
		p.Click("#tab-types")
		p.Click("#types tbody tr.row:nth-child(3)")
		p.picture("type-" + scheme)
		p.Click("#tab-blueprints")
		p.Click("#blueprints tbody tr.row:nth-child(3)")
		p.picture("blueprint-" + scheme)
		p.Click("#close")
	}
	if len(backgrounds) != 2 {
		t.Errorf("got the backgrounds %v", backgrounds)
	}
	p.Resize(480, 900)
	p.Click("#tab-types")
	p.picture("narrow")
	p.noProblems()
}

// All texts from users contain HTML. The test opens every view that shows them.
func TestBrowser_ShowsTextFromUsersAsText(t *testing.T) {
	p := open(t, 60, "")
	for _, view := range []string{"types", "parked", "blueprints"} {
		p.Click("#tab-" + view)
		p.Click("#" + view + " tbody tr.row:nth-child(2)")
		if got := p.text("#details"); !strings.Contains(got, hostile) {
			t.Errorf("%s: the details do not contain the text: %q", view, got)
		}
	}
	p.Click("#tab-graph")
	p.Click("#tab-replica")
	if got := p.text("#replica"); !strings.Contains(got, hostile) {
		t.Errorf("the replica does not contain the text: %q", got)
	}
	p.server.answer(http.StatusForbidden)
	p.Click("#refresh")
	p.Wait(`document.querySelector("#note").textContent.includes("<script>")`)
	p.picture("escaped")
	_ = p.Problems() // the browser logs the status code
	p.noProblems()
}

func TestBrowser_IsUsableWithManyTypes(t *testing.T) {
	const many = 5000
	p := open(t, many, "")
	p.poll(2)
	p.expect(map[string]string{"#types .shown": "5,000", "#tile-types .value": "5,000"})
	if rows := p.Text(`document.querySelectorAll("#types tbody tr").length`); len(rows) > 2 {
		t.Errorf("the table has %s elements for rows", rows)
	}
	// measure returns the milliseconds that an action takes, with layout.
	measure := func(action string) (milliseconds float64) {
		p.Eval(`(() => {
			const began = performance.now();
			`+action+`;
			document.body.offsetHeight;
			return performance.now() - began;
		})()`, &milliseconds)
		return milliseconds
	}
	filter := func(text string) string {
		return fmt.Sprintf(`const e = document.querySelector("#types input");
			e.value = %q;
			e.dispatchEvent(new Event("input"))`, text)
	}
	for _, step := range []struct{ name, action, selector, want string }{
		{"sort", `document.querySelector("#types [data-column=objects]").click()`, "#types .shown", "5,000"},
		{"filter", filter("team07 -0047"), "#types .shown", "124 of 5,000"},
		{"remove the filter", filter(""), "#types .shown", "5,000"},
		{"scroll", `document.querySelector("#types .frame").scrollTop = 90000`, "#types .shown", "5,000"},
		{"change the view", `document.querySelector("#tab-blueprints").click()`, "#blueprints .shown", "5,000"},
		{"draw dependencies", `document.querySelector("#tab-graph").click()`, "#graph .shown", "200 of 399"},
	} {
		took := measure(step.action)
		t.Logf("%s: %.0f ms", step.name, took)
		const most = 1000 // tolerates a busy machine; people notice 100 ms
		if took > most {
			t.Errorf("%s takes %.0f ms", step.name, took)
		}
		if got := p.text(step.selector); got[:min(len(got), len(step.want))] != step.want {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
	}
	p.Click("#tab-types")
	p.Eval(`document.querySelector("#types .frame").scrollTop = 1e9`, nil)
	p.Wait(`document.querySelector('#types tr[aria-rowindex="5001"]')`)
	p.picture("many")
	var poll float64
	p.Eval(`(async () => {
		const began = performance.now();
		const before = document.querySelector("#tile-rate").dataset.polls;
		document.querySelector("#refresh").click();
		while (document.querySelector("#tile-rate").dataset.polls === before) {
			await new Promise((resolve) => setTimeout(resolve, 1));
		}
		return performance.now() - began;
	})()`, &poll)
	t.Logf("poll: %.0f ms", poll)
	p.noProblems()
}

func TestBrowser_SortsAndFilters(t *testing.T) {
	p := open(t, 400, "")
	p.Click("#types [data-column=name]")
	if got := p.column("types", 1, 1); !strings.HasPrefix(got, "resource0000 ") {
		t.Errorf("got %s first", got)
	}
	p.Click("#types [data-column=name]")
	if got := p.column("types", 1, 1); !strings.HasPrefix(got, "resource0399 ") {
		t.Errorf("got %s first", got)
	}
	p.Click("#types [data-column=objects]") // numbers: largest first
	most := 0
	for i := range 400 {
		most = max(most, i*i%977)
	}
	if got := p.column("types", 3, 1); got != fmt.Sprint(most) {
		t.Errorf("got %s objects first, want %d", got, most)
	}
	if got := p.Text(`[...document.querySelectorAll("#types th")].map((th) => th.ariaSort).filter((s) => s)`); got !=
		"descending" {
		t.Errorf("got the orders %s", got)
	}
	p.fill("#types input", "TEAM07")
	p.expect(map[string]string{"#types .shown": "10 of 400"})
	p.fill("#types input", "team07 -0047")
	p.expect(map[string]string{"#types .shown": "9 of 400"})
	p.fill("#types input", "no such type")
	p.expect(map[string]string{"#types .none": "Nothing matches the filter.", "#types .shown": "0 of 400"})
	p.fill("#types input", "")
	p.Click(`#types .chip[data-state="Forbidden"]`)
	p.expect(map[string]string{"#types .shown": "1 of 400"})
	if got := p.column("types", 0, 9); got != "Forbidden" {
		t.Errorf("got the states %s", got)
	}
	// New data does not reset the filter, and the URL contains it.
	p.poll(1)
	p.expect(map[string]string{"#types .shown": "1 of 400"})
	if got := p.Text("location.hash"); got != "#types?sort=-objects&states=Forbidden" {
		t.Errorf("got the address %s", got)
	}
	p.Eval("window.before = true; location.reload()", nil)
	p.Wait(`!window.before && document.querySelector("#types .shown")?.textContent === "1 of 400"`)
	p.noProblems()
}

func TestBrowser_IsOperatedWithTheKeyboard(t *testing.T) {
	p := open(t, 400, "")
	p.Eval(`document.querySelector("#tab-types").focus()`, nil)
	p.Press("Tab") // to the filter
	if got := p.Text("document.activeElement.ariaLabel"); got != "Filter Types" {
		t.Errorf("got the focus on %s", got)
	}
	p.Eval(`document.querySelector("#types table").focus()`, nil)
	p.Press("ArrowDown", "ArrowDown", "Enter")
	p.Wait(`!document.querySelector("#details").hidden`)
	p.expect(map[string]string{"#details h2": "resource0194.team34.example.com"})
	p.Press("ArrowDown")
	p.expect(map[string]string{"#details h2": "resource0291.team11.example.com"})
	p.Press("End")
	p.Wait(`document.querySelector("#types tr.active")?.ariaRowIndex === "401"`)
	if got, want := p.Text(`document.querySelector("#types table").getAttribute("aria-activedescendant")`),
		p.Text(`document.querySelector("#types tr.active").id`); got != want || got == "" {
		t.Errorf("got the active row %q, want %q", got, want)
	}
	p.Press("Escape")
	p.Wait(`document.querySelector("#details").hidden`)
	p.Eval(`document.querySelector("#tab-types").focus()`, nil)
	p.Press("ArrowRight")
	if got := p.Text("document.activeElement.id"); got != "tab-parked" {
		t.Errorf("got the focus on %s", got)
	}
	p.Press("ArrowRight", "ArrowRight")
	p.Eval(`document.querySelector("#graph g.node").focus()`, nil)
	p.Press("Enter")
	p.expect(map[string]string{"#details h2": "blueprint-"})
	// Each control has a name.
	if got := p.Text(`[...document.querySelectorAll("button, input, select, table[role], aside, section")].filter((e) =>
		!e.textContent.trim() && !e.ariaLabel && !e.labels?.length && !e.getAttribute("aria-labelledby")
	).map((e) => e.outerHTML)`); got != "" {
		t.Errorf("elements without a name: %s", got)
	}
	p.noProblems()
}

func TestBrowser_KeepsTheLastDataWhenTheServerFails(t *testing.T) {
	p := open(t, 400, "")
	where := `JSON.stringify(["#tiles", "nav", "main"].map((s) => document.querySelector(s).getBoundingClientRect().top))`
	before := p.Text(where)
	for _, step := range []struct {
		code int
		want string
	}{
		{http.StatusUnauthorized, "does not accept the token (401)"},
		{http.StatusForbidden, "no permission to read the data (403)"},
		{http.StatusInternalServerError, "cannot return the data (500)"},
	} {
		p.server.answer(step.code)
		p.Click("#refresh")
		p.Wait(fmt.Sprintf(`document.querySelector("#connection").textContent.includes(%q)`, step.want))
		p.expect(map[string]string{"#age": "Data from", "#types .shown": "400"})
		if got := p.Text(where); got != before {
			t.Errorf("%d: the layout has moved from %s to %s", step.code, before, got)
		}
		p.picture(fmt.Sprint("failed-", step.code))
	}
	p.server.answer(0)
	p.Click("#refresh")
	p.Wait(`document.querySelector("#connection").dataset.level !== "bad"`)
	p.server.stop()
	p.Click("#refresh")
	p.Wait(`document.querySelector("#connection").textContent.includes("cannot be reached")`)
	p.expect(map[string]string{"#age": "Data from", "#types .shown": "400"})
}

func TestBrowser_KeepsRefreshingAfterAnErrorOfThePage(t *testing.T) {
	p := open(t, 10, "")
	p.Eval(`window.broken = true; Object.defineProperty(document, "title", {configurable: true, set() {
		if (window.broken) { throw new Error("broken"); }
	}})`, nil)
	p.Wait(`document.querySelector("#note").textContent.includes("cannot show the data: Error: broken")`)
	p.Eval(`window.broken = false`, nil)
	p.Wait(`!document.querySelector("#note").textContent.includes("broken")`)
	_ = p.Problems() // the page logs the error
}

func TestBrowser_DoesNotLoadDataWhileRefreshingIsPaused(t *testing.T) {
	p := open(t, 10, "")
	const show = `window.loads = 0; const load = window.fetch;
		window.fetch = (...all) => { window.loads++; return load(...all); };`
	p.Eval(`{`+show+`
		const e = document.querySelector("#interval");
		e.value = "0";
		e.dispatchEvent(new Event("change"));
		window.loads = 0;
		document.dispatchEvent(new Event("visibilitychange"));
	}`, nil)
	if got := p.Text(`window.loads`); got != "0" {
		t.Errorf("got %s requests while refreshing is paused", got)
	}
	p.Eval(`document.querySelector("#refresh").click()`, nil)
	p.Wait(`window.loads === 1`)
}

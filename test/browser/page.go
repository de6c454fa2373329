//go:build browser

package browser

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// Page is an open page.
type Page struct {
	*Browser
	session string

	mu       sync.Mutex // guards problems
	problems []string
}

// Open opens a page of the given size and waits until it has loaded. Each request contains the headers, which are given
// as alternating names and values.
func (b *Browser) Open(url string, width, height int, headers ...string) *Page {
	b.t.Helper()
	p := &Page{Browser: b}
	var target struct{ TargetID, SessionID string }
	p.do("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	p.do("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &target)
	p.session = target.SessionID
	b.mu.Lock()
	b.events[p.session] = p.record
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		p.do(domain+".enable", nil, nil)
	}
	p.Resize(width, height)
	extra := map[string]string{}
	for pair := range slices.Chunk(headers, 2) {
		extra[pair[0]] = pair[1]
	}
	p.do("Network.setExtraHTTPHeaders", map[string]any{"headers": extra}, nil)
	p.do("Page.navigate", map[string]any{"url": url}, nil)
	p.Wait(`document.readyState === "complete" && location.href !== "about:blank"`)
	return p
}

// record stores errors that the page logs, including violations of its Content-Security-Policy.
func (p *Page) record(m message) {
	switch m.Method {
	case "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled":
		var params struct{ Entry struct{ Text, URL string } }
		data, err := json.Marshal(m.Params)
		if err != nil || json.Unmarshal(data, &params) != nil {
			return
		}
		problem := m.Method + ": " + string(data)
		if text := params.Entry.Text; text != "" {
			problem = text + " " + params.Entry.URL
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.problems = append(p.problems, problem)
	}
}

// Problems returns the errors that the page has logged since the last call.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	problems := p.problems
	p.problems = nil
	return problems
}

// do sends a command and decodes its result. It fails the test if the command fails.
func (p *Page) do(method string, params, into any) {
	p.t.Helper()
	result, err := p.call(p.session, method, params)
	if err == nil && into != nil {
		err = json.Unmarshal(result, into)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// Resize sets the size of the page in CSS pixels.
func (p *Page) Resize(width, height int) {
	p.t.Helper()
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
	}, nil)
}

// SetDark sets the color scheme that the user prefers.
func (p *Page) SetDark(dark bool) {
	p.t.Helper()
	value := "light"
	if dark {
		value = "dark"
	}
	p.do("Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": value}},
	}, nil)
}

// Eval evaluates an expression, waits if it is a promise, and decodes its value.
func (p *Page) Eval(expression string, into any) {
	p.t.Helper()
	if err := p.eval(expression, into); err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
}

func (p *Page) eval(expression string, into any) error {
	result, err := p.call(p.session, "Runtime.evaluate", map[string]any{
		"expression": expression, "returnByValue": true, "awaitPromise": true,
	})
	if err != nil {
		return err
	}
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	if err := json.Unmarshal(result, &got); err != nil {
		return err
	}
	if got.ExceptionDetails != nil {
		return fmt.Errorf("exception: %s", got.ExceptionDetails)
	}
	if into == nil || got.Result.Value == nil {
		return nil
	}
	return json.Unmarshal(got.Result.Value, into)
}

// Text returns the value of an expression as text.
func (p *Page) Text(expression string) string {
	p.t.Helper()
	var text string
	p.Eval("String("+expression+")", &text)
	return text
}

// Wait waits until an expression is true.
func (p *Page) Wait(expression string) {
	p.t.Helper()
	const interval = 20 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for deadline := time.Now().Add(timeout); ; <-ticker.C {
		var is bool
		err := p.eval("Boolean("+expression+")", &is)
		if is {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("not true within %s: %s (error %v, problems %q)", timeout, expression, err, p.Problems())
		}
	}
}

// Click clicks on the center of an element.
func (p *Page) Click(selector string) {
	p.t.Helper()
	var at struct{ X, Y float64 }
	p.Eval(fmt.Sprintf(`(() => {
		const box = document.querySelector(%q).getBoundingClientRect();
		return {x: box.x + box.width / 2, y: box.y + box.height / 2};
	})()`, selector), &at)
	for _, event := range []string{"mousePressed", "mouseReleased"} {
		p.do("Input.dispatchMouseEvent", map[string]any{
			"type": event, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1,
		}, nil)
	}
}

// Press presses keys, given by names such as ArrowDown and Tab.
func (p *Page) Press(keys ...string) {
	p.t.Helper()
	codes := map[string]int{
		"Tab": 9, "Enter": 13, "Escape": 27, "PageDown": 34, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38,
		"ArrowRight": 39, "ArrowDown": 40,
	}
	for _, key := range keys {
		params := map[string]any{"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
		if key == "Enter" {
			params["text"] = "\r"
		}
		for _, event := range []string{"keyDown", "keyUp"} {
			params["type"] = event
			p.do("Input.dispatchKeyEvent", params, nil)
		}
	}
}

// Type inserts text into the focused element.
func (p *Page) Type(text string) {
	p.t.Helper()
	p.do("Input.insertText", map[string]any{"text": text}, nil)
}

// Screenshot writes a PNG image of the page to a file.
func (p *Page) Screenshot(file string) {
	p.t.Helper()
	var image struct{ Data []byte }
	p.do("Page.captureScreenshot", map[string]any{"format": "png"}, &image)
	if err := os.WriteFile(file, image.Data, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

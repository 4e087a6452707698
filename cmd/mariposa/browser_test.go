package main_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// A small client of the DevTools protocol drives a real Chromium. All tests share one, and each
// has its own cookies.

var chromium struct {
	once sync.Once
	err  error
	cmd  *exec.Cmd
	dir  string
	*devTools
}

// startChromium starts the browser that all tests share.
func startChromium() error {
	chromium.once.Do(func() {
		chromium.dir, chromium.err = os.MkdirTemp("", "mariposa-chromium-")
		if chromium.err != nil {
			return
		}
		cmd := exec.Command("chromium-headless-shell", "--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
			"--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-port=0", "--user-data-dir="+chromium.dir, "about:blank")
		cmd.Env = append(os.Environ(), "HOME="+chromium.dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the command is a script that starts the browser
		if chromium.err = cmd.Start(); chromium.err != nil {
			return
		}
		chromium.cmd = cmd
		var at []byte
		for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) { // it writes the file when it listens
			at, chromium.err = os.ReadFile(filepath.Join(chromium.dir, "DevToolsActivePort"))
			if strings.Count(string(at), "\n") == 1 || time.Now().After(deadline) {
				break
			}
		}
		port, path, _ := strings.Cut(strings.TrimSpace(string(at)), "\n")
		chromium.devTools, chromium.err = dialDevTools("ws://127.0.0.1:" + port + path)
	})
	return chromium.err
}

func stopChromium() {
	if chromium.cmd != nil {
		_ = syscall.Kill(-chromium.cmd.Process.Pid, syscall.SIGKILL)
		_ = chromium.cmd.Wait()
	}
	if chromium.dir != "" {
		_ = os.RemoveAll(chromium.dir)
	}
}

// devTools is a connection to a browser.
type devTools struct {
	conn *websocket.Conn

	mu      sync.Mutex
	last    int
	waiting map[int]chan devToolsMessage
	tabs    map[string]*tab // by session
}

type devToolsMessage struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

func dialDevTools(url string) (*devTools, error) {
	conn, _, err := websocket.Dial(context.Background(), url, nil)
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(64 << 20) // screenshots
	d := &devTools{conn: conn, waiting: map[int]chan devToolsMessage{}, tabs: map[string]*tab{}}
	go d.read()
	return d, nil
}

// read passes on what the browser says, until it ends.
func (d *devTools) read() {
	for {
		_, data, err := d.conn.Read(context.Background())
		if err != nil {
			return
		}
		var m devToolsMessage
		if json.Unmarshal(data, &m) != nil {
			continue
		}
		d.mu.Lock()
		if reply := d.waiting[m.ID]; reply != nil {
			delete(d.waiting, m.ID)
			reply <- m
		} else if t := d.tabs[m.Session]; t != nil {
			t.note(m)
		}
		d.mu.Unlock()
	}
}

// call sends a command and decodes its result.
func (d *devTools) call(ctx context.Context, session, method string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	reply := make(chan devToolsMessage, 1)
	d.mu.Lock()
	d.last++
	m := devToolsMessage{ID: d.last, Session: session, Method: method, Params: raw}
	d.waiting[m.ID] = reply
	d.mu.Unlock()
	data, _ := json.Marshal(m) // our own struct
	if err := d.conn.Write(ctx, websocket.MessageText, data); err != nil {
		return err
	}
	select {
	case m := <-reply:
		if m.Error != nil {
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		if result != nil {
			return json.Unmarshal(m.Result, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, ctx.Err())
	}
}

// tab is a tab of the browser with cookies of its own.
type tab struct {
	t       *testing.T
	session string

	mu     sync.Mutex
	errors []string // what a developer would see in the console
}

func newTab(t *testing.T) *tab {
	t.Helper()
	must(t, startChromium())
	p := &tab{t: t}
	var made struct {
		Context string `json:"browserContextId"`
		Target  string `json:"targetId"`
		Session string `json:"sessionId"`
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	must(t, chromium.call(ctx, "", "Target.createBrowserContext", map[string]any{}, &made))
	must(t, chromium.call(ctx, "", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": made.Context, "width": 1280, "height": 800}, &made))
	must(t, chromium.call(ctx, "", "Target.attachToTarget", map[string]any{"targetId": made.Target, "flatten": true}, &made))
	p.session = made.Session
	chromium.mu.Lock()
	chromium.tabs[p.session] = p
	chromium.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.command(domain+".enable", map[string]any{}, nil)
	}
	// All tabs of the browser behave as if they were in front.
	p.command("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil)
	t.Cleanup(func() {
		if t.Failed() {
			p.shot("failed-" + strings.ReplaceAll(t.Name(), "/", "-"))
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		_ = chromium.call(ctx, "", "Target.disposeBrowserContext", map[string]any{"browserContextId": made.Context}, nil) // the browser ends with the tests
	})
	return p
}

// note remembers what goes to the console.
func (p *tab) note(m devToolsMessage) {
	var say struct {
		Type  string `json:"type"`
		Entry struct {
			Level, Text, URL string
		} `json:"entry"`
		Details struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	_ = json.Unmarshal(m.Params, &say) // other events have other fields
	text := ""
	switch {
	case m.Method == "Runtime.exceptionThrown":
		text = say.Details.Text + " " + say.Details.Exception.Description
	case m.Method == "Log.entryAdded" && say.Entry.Level == "error":
		text = say.Entry.Text + " " + say.Entry.URL
	case m.Method == "Runtime.consoleAPICalled" && (say.Type == "error" || say.Type == "warning"):
		text = string(m.Params)
	default:
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errors = append(p.errors, text)
}

// removedMeanwhile is what the browser writes when an open instance was removed after the page
// had asked for its newest state. The page cannot prevent that.
var removedMeanwhile = regexp.MustCompile(`404 \(Not Found\) \S+/v1/instances/[0-9a-f-]+$`)

// quiet checks that nothing went to the console but what contains one of these texts.
func (p *tab) quiet(except ...string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
next:
	for _, e := range p.errors {
		if removedMeanwhile.MatchString(e) {
			continue
		}
		for _, known := range except {
			if strings.Contains(e, known) {
				continue next
			}
		}
		p.t.Errorf("the console says: %s", e)
	}
}

func (p *tab) command(method string, params, result any) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	must(p.t, chromium.call(ctx, p.session, method, params, result))
}

// eval returns the value of an expression in the page, as text.
func (p *tab) eval(expression string) string {
	p.t.Helper()
	value, err := p.tryEval(expression)
	must(p.t, err)
	return value
}

func (p *tab) tryEval(expression string) (string, error) {
	var r struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		Exception *struct {
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := chromium.call(ctx, p.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true}, &r)
	switch {
	case err != nil:
		return "", err
	case r.Exception != nil:
		return "", fmt.Errorf("%s: %s", expression, r.Exception.Exception.Description)
	case r.Result.Value == nil:
		return "", nil
	}
	return fmt.Sprint(r.Result.Value), nil
}

// reload loads the page again.
func (p *tab) reload() {
	p.t.Helper()
	p.replaced(func() { p.command("Page.reload", map[string]any{}, nil) })
}

// replaced waits until what is done has loaded the page again.
func (p *tab) replaced(by func()) {
	p.t.Helper()
	p.eval("window.isOld = true")
	by()
	pause := polling()
	for deadline := time.Now().Add(limit); ; pause() {
		// While the old page goes away, it has no value.
		if loaded, err := p.tryEval("String(!window.isOld && document.readyState === 'complete' && !!document.getElementById('app'))"); err == nil && loaded == "true" {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatal("the page is not loaded again")
		}
	}
}

// number returns the value of an expression in the page.
func (p *tab) number(expression string) float64 {
	p.t.Helper()
	n, err := strconv.ParseFloat(p.eval("String("+expression+")"), 64)
	must(p.t, err)
	return n
}

// until waits until an expression is true in the page.
func (p *tab) until(what, expression string) {
	p.t.Helper()
	pause := polling()
	for deadline := time.Now().Add(limit); p.eval("!!("+expression+")") != "true"; pause() {
		if time.Now().After(deadline) {
			p.t.Fatalf("still not so after %s: %s (%s)\n%s", limit, what, expression, p.eval("document.body?.innerText"))
		}
	}
}

// trying repeats a gesture of the mouse until an expression is true in the page: the page may move
// what the pointer is at.
func (p *tab) trying(what, expression string, gesture func()) {
	p.t.Helper()
	deadline := time.Now().Add(limit)
	for next := time.Now(); p.eval("!!("+expression+")") != "true"; {
		switch now := time.Now(); {
		case now.After(deadline):
			p.t.Fatalf("still not so after %s: %s (%s)", limit, what, expression)
		case !now.Before(next):
			gesture()
			next = now.Add(time.Second)
		default:
			time.Sleep(20 * time.Millisecond) // there is no signal to wait for: poll
		}
	}
}

// sees waits until the page shows a text.
func (p *tab) sees(text string) {
	p.t.Helper()
	p.until("the page shows "+text, "document.body?.innerText.includes("+quote(text)+")")
}

func quote(s string) string {
	b, _ := json.Marshal(s) // strings always marshal
	return string(b)
}

func (p *tab) visit(url string) {
	p.t.Helper()
	p.command("Page.navigate", map[string]any{"url": url}, nil)
	p.until(url+" is loaded", "document.readyState === 'complete' && document.getElementById('app')")
}

// button is an expression for the first enabled button or link with a text, outside of sheets.
func button(text string) string { return buttonIn("main, header", text) }

func buttonIn(selector, text string) string {
	return "[...document.querySelectorAll(" + quote(selector) + ")].flatMap((e) => [...e.querySelectorAll('button, a, summary')]).find((b) => !b.disabled && b.innerText.trim() === " + quote(text) + ")"
}

// clicked clicks an element at the moment when it is there: the page may redraw it at any time.
func clicked(element string) string {
	return "((e) => { e?.click(); return e })(" + element + ")"
}

// press clicks a button or link when it is there.
func (p *tab) press(text string) {
	p.t.Helper()
	p.until("there is a button "+text, clicked(button(text)))
}

// confirm clicks a button of the open sheet.
func (p *tab) confirm(text string) {
	p.t.Helper()
	p.until("the sheet has a button "+text, clicked(buttonIn("dialog[open]", text)))
}

// click clicks what a selector finds.
func (p *tab) click(selector string) {
	p.t.Helper()
	p.until("there is "+selector, clicked("document.querySelector("+quote(selector)+")"))
}

// fill types a text into a field.
func (p *tab) fill(selector, text string) {
	p.t.Helper()
	p.until("there is "+selector, "document.querySelector("+quote(selector)+")")
	for range 20 { // the page may redraw the field between the two commands
		p.eval("(() => { const f = document.querySelector(" + quote(selector) + "); f.focus(); f.select(); })()")
		p.command("Input.insertText", map[string]any{"text": text}, nil)
		if p.eval("String(document.querySelector("+quote(selector)+").value)") == text {
			return
		}
	}
	p.t.Fatalf("%s does not take %q", selector, text)
}

// The manifest editor is in a shadow root, and shows each line as an element.
const (
	editorRoot = "document.querySelector('#manifest')?.shadowRoot"
	editorText = "[..." + editorRoot + ".querySelectorAll('.cm-line')].map((l) => l.textContent).join('\\n')"
)

// paste replaces the text in the manifest editor.
func (p *tab) paste(text string) {
	p.t.Helper()
	p.until("the editor is loaded", editorRoot+"?.querySelector('.cm-content')")
	p.eval(`((at) => {
		at.focus();
		at.dispatchEvent(new KeyboardEvent("keydown", {key: "a", keyCode: 65, ctrlKey: true, bubbles: true, cancelable: true}));
		const data = new DataTransfer();
		data.setData("text/plain", ` + quote(text) + `);
		at.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}));
	})(` + editorRoot + `.querySelector(".cm-content"))`)
	p.until("the editor has the text", editorText+" === "+quote(text))
}

// keys presses keys, one after the other.
func (p *tab) keys(keys ...string) {
	p.t.Helper()
	for _, key := range keys {
		down := map[string]any{"type": "keyDown", "key": key}
		switch codes := map[string]int{"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}; {
		case len(key) == 1:
			down["text"] = key
		case key == "Enter":
			// The page enables the button one frame after the last letter; until then, Enter does nothing.
			p.until("the form can be sent", "!document.activeElement?.form?.querySelector('[type=submit]:disabled')")
			down["text"] = "\r"
			fallthrough
		default:
			down["code"], down["windowsVirtualKeyCode"] = key, codes[key]
		}
		p.command("Input.dispatchKeyEvent", down, nil)
		p.command("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
	}
}

// look sets the size of the window and the color scheme.
func (p *tab) look(width, height int, scheme string) {
	p.t.Helper()
	p.command("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}, nil)
	p.scheme(scheme)
}

// shot keeps a screenshot in .cache/page, for people to look at.
func (p *tab) shot(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var r struct {
		Data string `json:"data"`
	}
	if err := chromium.call(ctx, p.session, "Page.captureScreenshot", map[string]any{"format": "png", "optimizeForSpeed": true}, &r); err != nil {
		p.t.Logf("no screenshot: %v", err)
		return
	}
	dir := filepath.Join("..", "..", ".cache", "page")
	png, err := base64.StdEncoding.DecodeString(r.Data)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600)
	}
	if err != nil {
		p.t.Logf("no screenshot: %v", err)
	}
}

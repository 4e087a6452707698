package client_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"mariposa/client"
)

// Every method of the client calls an existing route: the OpenAPI document lists all
// routes.
func TestEveryMethodAsksForARouteOfTheTable(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../api/testdata/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Paths map[string]map[string]any }
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	var routes []*regexp.Regexp
	parameter := regexp.MustCompile(`\\\{\w+\\\}`)
	for path, methods := range doc.Paths {
		pattern := parameter.ReplaceAllString(regexp.QuoteMeta(path), `[^/]+`)
		for method := range methods {
			routes = append(routes, regexp.MustCompile("^"+strings.ToUpper(method)+" "+pattern+"$"))
		}
	}

	var mu sync.Mutex
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Method+" "+r.URL.EscapedPath())
		w.WriteHeader(http.StatusForbidden) // which no method tries again
	}))
	t.Cleanup(srv.Close)
	c, err := client.New(client.Options{URL: srv.URL, HTTPClient: srv.Client()})
	if err != nil {
		t.Fatal(err)
	}
	v := reflect.ValueOf(c)
	for i := range v.NumMethod() {
		name := v.Type().Method(i).Name
		asked = nil
		callWithSamples(t, v.Method(i))
		for _, a := range asked {
			known := false
			a = strings.Replace(a, "/v1/users/x/", "/v1/", 1) // every path can be prefixed with a user
			for _, route := range routes {
				known = known || route.MatchString(a)
			}
			if !known {
				t.Errorf("%s asks for %s, which is no route", name, a)
			}
		}
		if len(asked) == 0 && !strings.Contains(" Ahead Close Redact URL ", " "+name+" ") {
			t.Errorf("%s asks for nothing", name)
		}
	}
}

// callWithSamples calls a method with sample arguments, and reads the first item of a
// returned iterator.
func callWithSamples(t *testing.T, method reflect.Value) {
	t.Helper()
	in := make([]reflect.Value, method.Type().NumIn())
	for i := range in {
		switch kind := method.Type().In(i); {
		case kind == reflect.TypeFor[context.Context]():
			in[i] = reflect.ValueOf(t.Context())
		case kind.Kind() == reflect.String:
			in[i] = reflect.ValueOf("x").Convert(kind)
		case kind.Kind() == reflect.Int || kind.Kind() == reflect.Int64:
			in[i] = reflect.ValueOf(1).Convert(kind)
		case kind.Kind() == reflect.Pointer:
			in[i] = reflect.New(kind.Elem())
		case kind.Kind() == reflect.Slice && kind.Elem().Kind() == reflect.String:
			in[i] = reflect.ValueOf([]string{"x"}).Convert(kind)
		default:
			in[i] = reflect.New(kind).Elem()
			if kind.Kind() == reflect.Struct && in[i].FieldByName("Name").Kind() == reflect.String {
				in[i].FieldByName("Name").SetString("x")
			}
		}
	}
	call := method.Call
	if method.Type().IsVariadic() {
		call = method.CallSlice
	}
	for _, out := range call(in) {
		if out.Kind() == reflect.Func && !out.IsNil() && out.Type().NumIn() == 1 {
			stop := reflect.MakeFunc(out.Type().In(0), func([]reflect.Value) []reflect.Value { return []reflect.Value{reflect.ValueOf(false)} })
			out.Call([]reflect.Value{stop})
		}
	}
}

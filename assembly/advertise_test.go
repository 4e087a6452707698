package assembly

import (
	"strings"
	"testing"
)

func TestAnAdvertisedAddressIsChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		url      string
		insecure bool
		cert     *certificate
		problem  string
	}{
		"none":                            {},
		"encrypted":                       {url: "https://10.0.0.1:8080", cert: &certificate{}},
		"encrypted by a proxy":            {url: "https://a.example"},
		"on this machine":                 {url: "http://127.0.0.1:8080"},
		"unencrypted":                     {url: "http://10.0.0.1:8080", problem: "unencrypted"},
		"unencrypted, on request":         {url: "http://10.0.0.1:8080", insecure: true},
		"unencrypted despite certificate": {url: "http://127.0.0.1:8080", cert: &certificate{}, problem: "use an https address"},
		"all addresses":                   {url: "https://0.0.0.0:8080", problem: "name one at which other machines reach this one"},
		"all addresses of IPv6":           {url: "https://[::]:8080", problem: "name one at which other machines reach this one"},
		"not a URL":                       {url: "10.0.0.1:8080", problem: "use a URL such as"},
		"with a path":                     {url: "https://a/path", problem: "use a URL such as"},
		"with a password":                 {url: "https://u:p@a", problem: "use a URL such as"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := checkAdvertised(Config{Advertise: c.url, Insecure: c.insecure, cert: c.cert})
			if (err == nil) != (c.problem == "") || (err != nil && !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("%v", err)
			}
		})
	}
}

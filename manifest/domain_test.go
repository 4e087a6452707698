package manifest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"mariposa"
)

const nets = "networks: {backend: {}, db: {}, other: {}}\n"

func TestDNSNamesOfServicesAndNetworks(t *testing.T) {
	t.Parallel()
	p := mustParse(t, in("networks: [backend, db]")+nets)
	svc := p.ByName["web"]
	scope := someScope
	scope.HasService = func(name string) bool { return p.ByName[name] != nil }
	for path, want := range map[string]string{
		"cns.svc.db":             "db.svc.shop.acme.mariposa.internal", // a service before a network
		"cns.svc.web":            "web.svc.shop.acme.mariposa.internal",
		"cns.svc.public":         "web.public.svc.shop.acme.mariposa.internal",
		"cns.svc.private":        "web.private.svc.shop.acme.mariposa.internal",
		"cns.svc.backend":        "web.backend.svc.shop.acme.mariposa.internal",
		"cns.svc.db.private":     "db.private.svc.shop.acme.mariposa.internal",
		"cns.inst.public":        "web.2.public.inst.shop.acme.mariposa.internal",
		"cns.inst.backend":       "web.2.backend.inst.shop.acme.mariposa.internal",
		"cns.inst.web.1":         "web.1.inst.shop.acme.mariposa.internal",
		"cns.prefix.public":      "web.public.svc.shop.acme",
		"cns.prefix.db":          "db.svc.shop.acme",
		"cns.prefix.backend":     "web.backend.svc.shop.acme",
		"placement.dc.name":      "east",
		"cns.svc.web.backend":    "web.backend.svc.shop.acme.mariposa.internal",
		"cns.prefix.web.private": "web.private.svc.shop.acme",
	} {
		if got, ok := scope.value(svc, path); !ok || got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

func TestDNSNamesThatLeadNowhereAreRefused(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"cns.svc.public": "", "cns.svc.private": "", "cns.svc.backend": "", "cns.inst.backend": "", "cns.prefix.db": "", "cns.svc.web.backend": "",
		"cns.svc.other":      `"other", which does not exist`,
		"cns.prefix.nothing": `"nothing", which does not exist`,
		"cns.svc.db.backend": `does not use such a network`,
		"cns.svc.web.other":  `does not use such a network`,
		"cns.prefix":         `"cns.prefix", which does not exist`,
	} {
		_, err := Parse([]byte(in("networks: [backend]\ntags: {a: \"{{ ."+path+" }}\"}") + "networks: {backend: {}, other: {}}\n"))
		if (err == nil) != (want == "") {
			t.Errorf("%s: %v", path, err)
			continue
		}
		var e *mariposa.Error
		if errors.As(err, &e) && !slices.ContainsFunc(e.Faults, func(f mariposa.Fault) bool { return strings.Contains(f.Message, want) }) {
			t.Errorf("%s: %v", path, e.Faults)
		}
	}
}

package client

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net/url"
)

// send calls the API and returns a document.
func send[T any](ctx context.Context, c *Client, r request) (*T, error) {
	document := new(T)
	if err := c.do(ctx, r, document); err != nil {
		return nil, err
	}
	return document, nil
}

// pages requests all pages. It also stops if the server repeats a marker, which would
// otherwise never end.
func pages(q url.Values, page func() (marker string, err error)) error {
	for {
		marker, err := page()
		if err != nil || marker == "" || marker == q.Get("marker") {
			return err
		}
		q.Set("marker", marker)
	}
}

// iteratePages iterates over a list, page by page; parts returns the items of a page and
// the marker of the next. It stops at the first error.
func iteratePages[P, T any](ctx context.Context, c *Client, path string, q url.Values, parts func(page *P) ([]T, string)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		q := maps.Clone(q) // the markers are set in it
		err := pages(q, func() (string, error) {
			page, err := send[P](ctx, c, get(path, q))
			if err != nil {
				return "", err
			}
			all, marker := parts(page)
			for _, one := range all {
				if !yield(one, nil) {
					return "", errStop
				}
			}
			return marker, nil
		})
		if err != nil && !errors.Is(err, errStop) {
			var none T
			yield(none, err)
		}
	}
}

// collect returns all items of a sequence, never nil.
func collect[T any](list iter.Seq2[T, error]) ([]T, error) {
	all := []T{}
	for one, err := range list {
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

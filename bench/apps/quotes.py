"""Prices American options by QuantLib: a server that has it loaded, as each clone of its VM then has.

A connection sends a line for each option, strike, volatility and days, and an empty one; it gets their prices.
"""

import socketserver

import QuantLib as ql

TODAY = ql.Date(1, 6, 2026)
STEPS = 101


def price(strike, volatility, days):
    ql.Settings.instance().evaluationDate = TODAY
    count = ql.Actual365Fixed()
    option = ql.VanillaOption(ql.PlainVanillaPayoff(ql.Option.Put, strike), ql.AmericanExercise(TODAY, TODAY + int(days)))
    process = ql.BlackScholesMertonProcess(
        ql.QuoteHandle(ql.SimpleQuote(100.0)),
        ql.YieldTermStructureHandle(ql.FlatForward(TODAY, 0.01, count)),
        ql.YieldTermStructureHandle(ql.FlatForward(TODAY, 0.03, count)),
        ql.BlackVolTermStructureHandle(ql.BlackConstantVol(TODAY, ql.NullCalendar(), volatility, count)),
    )
    option.setPricingEngine(ql.BinomialVanillaEngine(process, "crr", STEPS))
    return option.NPV()


class Quotes(socketserver.StreamRequestHandler):
    def handle(self):
        for line in iter(self.rfile.readline, b"\n"):
            self.wfile.write(b"%.6f\n" % price(*map(float, line.split())))


socketserver.TCPServer.allow_reuse_address = True
with socketserver.TCPServer(("127.0.0.1", 7001), Quotes) as server:
    server.serve_forever()

"""The session of `npm run bench:states`: 40 cells over tables of pandas, whose data are made from a seed."""

CELLS = [
    "import numpy as np\nimport pandas as pd\nrng = np.random.default_rng(7)\nn = 1_000_000",
    """trips = pd.DataFrame({
    "start": pd.Timestamp("2025-01-01") + pd.to_timedelta(np.sort(rng.integers(0, 365 * 86_400, n)), unit="s"),
    "minutes": rng.gamma(2.0, 7.0, n).round(1),
    "station": rng.integers(0, 400, n),
    "to": rng.integers(0, 400, n),
    "rider": rng.integers(0, 20_000, n),
    "member": rng.random(n) < 0.7,
})""",
    """stations = pd.DataFrame({
    "station": np.arange(400),
    "name": [f"Station {number}" for number in range(400)],
    "x": rng.normal(0, 3, 400),
    "y": rng.normal(0, 3, 400),
    "docks": rng.integers(10, 60, 400),
})""",
    "trips.head()",
    "trips.describe()",
    "missing = trips.isna().sum()\nmissing",
    "trips['hour'] = trips['start'].dt.hour",
    "trips['weekday'] = trips['start'].dt.dayofweek",
    "by_hour = trips.groupby('hour')['minutes'].agg(['mean', 'count'])\nby_hour",
    """stops = trips.groupby("station")
by_station = stops.agg(trips=("rider", "size"), riders=("rider", "nunique"))
by_station.head()""",
    "busiest = by_station.sort_values('trips', ascending=False).head(20)\nbusiest",
    "named = busiest.join(stations.set_index('station')['name'])\nnamed",
    """def distance(frame, places):
    here = places.set_index("station")[["x", "y"]]
    start, end = here.loc[frame["station"]].to_numpy(), here.loc[frame["to"]].to_numpy()
    return np.sqrt(((start - end) ** 2).sum(axis=1))""",
    "trips['km'] = distance(trips, stations)",
    "trips['speed'] = 60 * trips['km'] / trips['minutes'].clip(lower=1)",
    "trips['speed'].quantile([0.01, 0.5, 0.99])",
    "slow = trips[trips['speed'] < 1]\nlen(slow)",
    "clean = trips[(trips['speed'] < 80) & (trips['minutes'] >= 1)].reset_index(drop=True)\nlen(clean) / len(trips)",
    "notes = {'rows': len(clean), 'removed': len(trips) - len(clean)}\nnotes",
    "members = clean.groupby('member')[['minutes', 'km', 'speed']].mean()\nmembers",
    "hourly = clean.pivot_table(index='weekday', columns='hour', values='rider', aggfunc='size')\nhourly.shape",
    "peak = hourly.stack().idxmax()\npeak",
    "daily = clean.set_index('start').resample('D')['minutes'].agg(['sum', 'size'])\ndaily.tail()",
    "smooth = daily.rolling(7, center=True).mean()\nsmooth.dropna().head()",
    "clean['long'] = clean['minutes'] > clean['minutes'].median()",
    "flows = clean.groupby(['station', 'to']).size().rename('trips').reset_index()\nflows.nlargest(5, 'trips')",
    "balance = flows.groupby('station')['trips'].sum() - flows.groupby('to')['trips'].sum()\nbalance.describe()",
    "stations['balance'] = stations['station'].map(balance)",
    "stations.sort_values('balance').head()",
    "features = clean[['minutes', 'km', 'hour', 'weekday']].astype(float)\nfeatures.corr()",
    "X = np.column_stack([np.ones(len(features)), features[['km', 'hour', 'weekday']]])\nX.shape",
    "weights, *_ = np.linalg.lstsq(X, features['minutes'].to_numpy(), rcond=None)\nweights",
    "residuals = features['minutes'].to_numpy() - X @ weights\nresiduals.std()",
    "notes['r2'] = 1 - residuals.var() / features['minutes'].var()\nnotes",
    "groups = {name: part['minutes'].mean() for name, part in clean.groupby('weekday')}\ngroups",
    """class Report:
    def __init__(self, title):
        self.title, self.lines = title, []
    def add(self, name, value):
        self.lines.append((name, round(float(value), 3)))
        return self
report = Report("Trips").add("rows", len(clean))""",
    "report.add('minutes', clean['minutes'].mean()).add('r2', notes['r2'])\nreport.lines",
    "top = clean['rider'].value_counts().head(100)\ntop.iloc[0]",
    "sample = clean.sample(1000, random_state=1)\nsample['speed'].mean()",
    "summary = clean.groupby(['weekday', 'member'])['minutes'].describe()\nsummary",
]

#: The cell before the others of the second row: a GB that does not change, and that no compression makes smaller.
RESIDENT = "import numpy as np\nresident = np.random.default_rng(1).integers(0, 256, 10**9, dtype='u1')"
